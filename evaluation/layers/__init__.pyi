from .layer_analysis import ModelMeasures as ModelMeasures
from .layer_analysis import measure as measure
from .layer_charts import draw_charts as draw_charts
from .position_sample import SampleSettings as SampleSettings
