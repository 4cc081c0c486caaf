from .png_charts import COLOURS as COLOURS
from .png_charts import Line as Line
from .png_charts import Panel as Panel
from .png_charts import draw_panels as draw_panels
from .progress_line import duration as duration
from .run_summary import RunSummary as RunSummary
from .run_summary import runs_below as runs_below
from .run_summary import summarize as summarize
