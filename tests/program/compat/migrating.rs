//! The tables of `docs/migrating.md` name flags that exist.

use std::collections::BTreeSet;

use vllm_sim_replay_cli::replay_clap_command;

/// Returns the flags that a cell of a table names.
fn flags_in(cell: &str) -> impl Iterator<Item = &str> {
    let words = cell.split(['`', ' ', ',', ';', '(', ')', '=']);
    words.filter_map(|word| word.strip_prefix("--"))
}

#[test]
fn flags_of_the_migration_tables_exist() {
    let replay = replay_clap_command();
    let mut known: BTreeSet<&str> =
        replay.get_arguments().filter_map(|arg| arg.get_long()).collect();
    // Another test compares this page with the flags.
    let flags = include_str!("../../../docs/flags.md");
    known.extend(flags.lines().flat_map(flags_in));
    let page = include_str!("../../../docs/migrating.md");
    let (mut tables, mut checked, mut unknown) = (0, 0, Vec::new());
    for line in page.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 2, "{line}");
        if cells[0].starts_with("---") {
            tables += 1;
            continue;
        }
        // "the same" stands for the flags of the other program.
        let same = cells[1].starts_with("the same");
        let cells = if same { &cells[..] } else { &cells[1..] };
        for flag in cells.iter().flat_map(|cell| flags_in(cell)) {
            checked += 1;
            if !known.contains(flag) {
                unknown.push(flag);
            }
        }
    }
    assert_eq!(unknown, Vec::<&str>::new());
    assert!(tables >= 5 && checked > 100, "{tables} tables, {checked} flags");
}
