"""The token datastore: encode passages into keys, keep them, search them."""
