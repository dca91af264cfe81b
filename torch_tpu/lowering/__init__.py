"""ATen to StableHLO: one file a family, one registry for every mode."""
