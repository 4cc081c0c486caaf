from .analyze_models import ModelMeasures as ModelMeasures
from .analyze_models import measure as measure
from .jackknife import Estimate as Estimate
from .layer_analysis import FEWEST as FEWEST
from .layer_analysis import Information as Information
from .layer_analysis import Similarity as Similarity
from .layer_charts import draw_information as draw_information
from .layer_charts import draw_similarity as draw_similarity
