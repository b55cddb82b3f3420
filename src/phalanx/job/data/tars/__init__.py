"""Samples of any kind, each of named fields of bytes, in WebDataset's tar files with an index that says where each field lies."""
