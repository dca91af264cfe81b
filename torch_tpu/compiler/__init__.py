"""From a trace or an FX graph to an executable: module building, options, the plugin and the cache."""
