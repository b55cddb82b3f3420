"""Images of classes for the trainer: samples of tars, decoded, cut and mirrored, as rows like those of tokens. No torch."""
