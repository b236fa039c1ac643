"""Where proposals come from: a draft model, or the text itself."""
