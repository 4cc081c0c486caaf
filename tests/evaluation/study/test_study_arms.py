"""The arms of a study: their names, their masking, and what is refused as one."""

import re

import pytest

from data_prep.errors import UserError
from evaluation.study.arms import grid
from pretrain.config import MaskingConfig

USUAL = MaskingConfig()


def names(*axes, masking=USUAL):
    return [arm.name for arm in grid(*axes, masking)]


def test_the_grid_names_each_arm():
    found = names(["token", "whole_word"], ["0.15", "0.3:0.15"], ["80/10/10", "100/0/0"])
    assert found == [
        "token-0.15",
        "token-0.15-100-0-0",
        "token-0.3to0.15",
        "token-0.3to0.15-100-0-0",
        "whole_word-0.15",
        "whole_word-0.15-100-0-0",
        "whole_word-0.3to0.15",
        "whole_word-0.3to0.15-100-0-0",
    ]


def test_an_arm_is_a_whole_masking_section():
    own = MaskingConfig.model_validate({"strategy": "span", "span": {"p": 0.5}, "replacement": {"per": "token"}})
    span, ngram = grid(["span", "ngram"], ["0.3:0.15"], ["60/30/10"], own)
    assert span.masking["rate"] == {"schedule": "linear", "start": 0.3, "end": 0.15}
    assert span.masking["replacement"] == {"mask": 0.6, "random": 0.3, "per": "token"}
    assert span.masking["span"]["p"] == 0.5
    assert ngram.masking["span"] == MaskingConfig().span.model_dump()  # as it would be refused
    assert MaskingConfig.model_validate(ngram.masking).strategy == "ngram"


@pytest.mark.parametrize(
    "axes,words",
    [
        ((["tokens"], ["0.15"], ["80/10/10"]), "masking.strategy must be token, whole_word"),
        ((["token"], ["1.5"], ["80/10/10"]), "--rates '1.5' is not a number between 0 and 1"),
        ((["token"], ["0.3:0.2:0.1"], ["80/10/10"]), "--rates '0.3:0.2:0.1'"),
        ((["token"], ["x"], ["80/10/10"]), "--rates 'x'"),
        ((["token"], ["0.15"], ["80/10/20"]), "three whole percentages that add up to 100"),
        ((["token"], ["0.15"], ["80/10"]), "--replacements '80/10'"),
        ((["token", "token"], ["0.15"], ["80/10/10"]), "--strategies token token: give each once"),
        ((["token"], ["0.15", "0.150"], ["80/10/10"]), "two arms of the study are the same"),
        ((["collocation"], ["0.15"], ["80/10/10"]), "0.15, 80/10/10: masking: strategy collocation needs"),
    ],
)
def test_what_is_no_arm_is_refused(axes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        grid(*axes, USUAL)
