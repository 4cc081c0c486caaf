"""Configuration of a run: one YAML file and `section.key=value` overrides. Every key is checked.

`load_config` reads a `Config`, and `save_config` writes one. The other classes are its sections. `address_problem`
checks an address of MLflow. No module here imports torch, so the command line and the launchers check a config quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
