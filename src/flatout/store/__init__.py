"""The HDF5 store: format, shard writer, reader, prepare, verify."""
