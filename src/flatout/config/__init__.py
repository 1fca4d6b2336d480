"""One typed config: schema, presets, load, overrides."""
