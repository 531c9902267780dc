"""What all packages share: batches, pieces, interfaces, random numbers, files, ranks, errors."""
