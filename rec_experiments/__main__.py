from rec_experiments.cli.main import main

main()
