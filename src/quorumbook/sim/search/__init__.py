"""What makes seeds find more: directed phases, counted rare states, shorter stories."""
