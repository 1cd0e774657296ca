"""The CXI provider. The package itself loads nothing, so that `weft device` and `weft service` start fast."""
