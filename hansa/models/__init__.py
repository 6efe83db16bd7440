"""Models and tokenizers, based on Hugging Face transformers."""
