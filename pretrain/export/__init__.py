"""A checkpoint as a Hugging Face folder with model card; and model names that users type, as folders."""
