"""Language models: load one, read with it, tap its keys, word its prompts."""
