"""Verifiers: from a response's text and the known answer to a VerifierResult."""
