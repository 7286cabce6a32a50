"""What all stand on: checked signatures, protocols, trees of arrays, networks."""
