"""The paper's figures: computed ones, and curves drawn from run folders."""
