"""Citations: from the places of copied tokens to ranges of characters."""
