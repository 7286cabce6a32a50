"""Other libraries' interfaces: ALF, DI-engine, Ray."""
