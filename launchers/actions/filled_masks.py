"""Fill the masks of texts."""

from collections.abc import Sequence
from pathlib import Path

from launchers.arguments import require_inputs
from launchers.display import CommandProgress


def likely_tokens(model: str | Path, texts: Sequence[str], top: int) -> list[list[list[tuple[str, int, float]]]]:
    """The `top` most likely tokens of each mask of each text: (text of the token, id, probability), best first.

    Raises:
        UserError: the model cannot be used, or a text has no mask.
    """
    [path] = require_inputs([model])
    with CommandProgress("loading the model"):
        from data_prep.tokenizer import Spelling
        from evaluation.generation import Writer
        from pretrain.export import model_folder

        folder = model_folder(path)
        writer, spelling = Writer(folder), Spelling.open(folder)
        return [
            [[(spelling.text([id]).strip(), id, share) for id, share in tokens] for tokens in writer.fill(text, top)]
            for text in texts
        ]
