"""Bytes that must survive: atomic files, blobs named by their content, packed workdirs. Imports only core."""
