"""Models and tokenisers, by way of Hugging Face transformers."""

from transformers.utils import logging

logging.disable_progress_bar()  # loading is quick and repeated; Hansa shows its own progress
logging.set_verbosity_error()
