"""How the representations of a trained model change from layer to layer."""
