"""The method itself: mixture, spans, verification. It knows token ids and tensors, never text."""
