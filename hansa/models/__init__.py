"""Models and tokenisers, by way of Hugging Face transformers."""
