"""How values are printed: tables, JSON, and the sentences of findings."""
