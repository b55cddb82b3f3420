"""Bytes that must survive: object stores, blobs named by their content, packed workdirs, atomic files. Imports only core."""
