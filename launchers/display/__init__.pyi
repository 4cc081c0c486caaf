from .json_output import check_json_output as check_json_output
from .json_output import write_json_output as write_json_output
from .marked_text import LEGEND as LEGEND
from .marked_text import Segment as Segment
from .marked_text import coloured as coloured
from .marked_text import listed as listed
from .marked_text import marked as marked
from .progress import CommandProgress as CommandProgress
