from .export_location import chosen_checkpoint as chosen_checkpoint
from .export_location import export_place as export_place
from .hugging_face_export import export_run as export_run
from .resolve_model import check_vocabulary as check_vocabulary
from .resolve_model import ids_around as ids_around
from .resolve_model import load_language_model as load_language_model
from .resolve_model import load_tokenizer as load_tokenizer
from .resolve_model import model_folder as model_folder
