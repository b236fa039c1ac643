"""Generated from protos/draftproof/v1 by `make protos`; never edited by hand."""
