"""fedpeft: federated, parameter-efficient fine-tuning of frozen transformers."""

__version__ = "0.1.0"
