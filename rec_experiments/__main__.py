from rec_experiments.cli import main

main()
