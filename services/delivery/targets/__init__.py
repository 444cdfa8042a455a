"""The adapters of the platforms, one family a platform, all behind `port.Target`."""
