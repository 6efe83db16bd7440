"""Federation files: settings, reading, checking, plug-ins, JSON Schema."""
