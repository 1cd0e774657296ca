"""Providers: the policies that `weft.fi` asks. Importing a provider's module registers it (weft.fi.registry)."""
