"""MosaicML Streaming's format MDS (github.com/mosaicml/streaming, version 2): read into data of ours, and written from it."""
