//! The list of mutants: the files in `xtask/mutants`.
//!
//! ```text
//! # a comment
//! [crates/tasuki-store/sql/run/start.sql]
//! T2 sqlite: token
//! - and lease_token = :token
//! ```
//!
//! The path in brackets is the file of the following mutants. A mutant begins with its transition, the database whose
//! contract tests must fail, and the guard in words. `- ` lines are the text to find, `+ ` lines its replacement; without
//! `+ ` lines the text is removed. The text occurs once, unless the line `occurrence N of M` stands before it. A guard
//! that is stated twice, in a decision and again in the write, is removed in both places by one mutant: a line `in PATH`
//! begins an edit of another file.

use std::path::Path;

use clap::ValueEnum;

/// A database with contract tests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
    Mysql,
}

impl Database {
    /// Name of the database in the list and in the names of contract tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }

    /// Environment variable with the URL of the server that the contract tests use.
    pub(crate) fn server_variable(self) -> Option<&'static str> {
        match self {
            Self::Sqlite => None,
            Self::Postgres => Some("TASUKI_TEST_PG"),
            Self::Mysql => Some("TASUKI_TEST_MYSQL"),
        }
    }
}

/// A change of the sources that removes one guard of one transition.
#[derive(Debug)]
pub(crate) struct Mutant {
    /// Number of the transition, for example `T1c`; `F` for the fence by the leader's epoch.
    pub(crate) transition: String,
    /// The guard, in the words of the transition table.
    pub(crate) guard: String,
    /// The database whose contract tests must fail.
    pub(crate) database: Database,
    /// The changes. There are several if the guard is stated in several places.
    pub(crate) edits: Vec<Edit>,
}

/// The replacement of one text in one file.
#[derive(Debug)]
pub(crate) struct Edit {
    /// Path from the root of the repository.
    pub(crate) file: String,
    find: String,
    replacement: String,
    /// Number of the occurrence to replace, from 1.
    occurrence: usize,
    /// Number of times that the text occurs.
    occurrences: usize,
}

impl Mutant {
    /// Whether the transition, the guard or a file contains the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let has = |value: &str| value.contains(text);
        has(&self.transition) || has(&self.guard) || self.edits.iter().any(|edit| has(&edit.file))
    }

    /// Applies all edits. Returns the path and the new contents of each changed file, in the order of the edits.
    pub(crate) fn changed_files(&self, root: &Path) -> Result<Vec<(String, String)>, String> {
        let mut files: Vec<(String, String)> = Vec::new();
        for edit in &self.edits {
            let index = match files.iter().position(|(path, _)| *path == edit.file) {
                Some(index) => index,
                None => {
                    let text = std::fs::read_to_string(root.join(&edit.file))
                        .map_err(|error| format!("{self}: {}: {error}", edit.file))?;
                    files.push((edit.file.clone(), text));
                    files.len() - 1
                }
            };
            files[index].1 =
                edit.apply(&files[index].1).map_err(|error| format!("{self}: {error}"))?;
        }
        Ok(files)
    }
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.transition, self.database.name(), self.guard)
    }
}

impl Edit {
    fn apply(&self, text: &str) -> Result<String, String> {
        let starts: Vec<usize> = text.match_indices(&self.find).map(|(start, _)| start).collect();
        if starts.len() != self.occurrences {
            let (found, expected) = (starts.len(), self.occurrences);
            return Err(format!(
                "{} contains this text {found} times, but the list says {expected}:\n{}",
                self.file, self.find
            ));
        }
        if self.find == self.replacement {
            return Err(format!("the replacement does not change {}", self.file));
        }
        let start = starts[self.occurrence - 1];
        let (before, rest) = text.split_at(start);
        Ok(format!("{before}{}{}", self.replacement, &rest[self.find.len()..]))
    }
}

/// Reads all files of the list. The mutants are in the order of the transition table.
pub(crate) fn read(root: &Path) -> Result<Vec<Mutant>, String> {
    let folder = root.join("xtask/mutants");
    let entries =
        std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    let mut mutants = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        mutants.extend(parse(&text).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    mutants.sort_by_key(|mutant| table_position(&mutant.transition));
    Ok(mutants)
}

/// Sort key of a transition: the fence, then T0, T1, T1c, T2 and so on.
fn table_position(transition: &str) -> (Option<u32>, String) {
    let numbered = transition.trim_start_matches('T');
    let suffix = numbered.trim_start_matches(|c: char| c.is_ascii_digit());
    (numbered[..numbered.len() - suffix.len()].parse().ok(), suffix.to_owned())
}

fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut parser = Parser::default();
    for (index, line) in text.lines().enumerate() {
        parser.read_line(line).map_err(|error| format!("line {}: {error}", index + 1))?;
    }
    match parser.mutants.iter().find(|mutant| mutant.edits.is_empty()) {
        Some(mutant) => Err(format!("{mutant}: no text to find")),
        None => Ok(parser.mutants),
    }
}

#[derive(Default)]
struct Parser {
    mutants: Vec<Mutant>,
    /// The file in brackets.
    section: String,
    /// File of the next edit.
    file: String,
    /// Occurrence and number of occurrences of the next text to find.
    occurrence: Option<(usize, usize)>,
    /// The last line began with `-`, so that another one continues the same text.
    in_find: bool,
}

impl Parser {
    fn read_line(&mut self, line: &str) -> Result<(), String> {
        let was_in_find = std::mem::take(&mut self.in_find);
        let content = |marker: &str| {
            let rest = line.strip_prefix(marker)?;
            (rest.is_empty() || rest.starts_with(' ')).then(|| rest.get(1..).unwrap_or_default())
        };
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(find) = content("-") {
            self.in_find = true;
            return self.add_find_line(find, was_in_find);
        }
        if let Some(replacement) = content("+") {
            let edit = self.mutants.last_mut().and_then(|mutant| mutant.edits.last_mut());
            let edit = edit.ok_or("a replacement without a text to find")?;
            if !edit.replacement.is_empty() {
                edit.replacement.push('\n');
            }
            edit.replacement.push_str(replacement);
            return Ok(());
        }
        if let Some(file) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            (self.section, self.file) = (file.to_owned(), file.to_owned());
            return Ok(());
        }
        if let Some(file) = line.strip_prefix("in ") {
            file.clone_into(&mut self.file);
            return Ok(());
        }
        if let Some(numbers) = line.strip_prefix("occurrence ") {
            self.occurrence = parse_pair(numbers, " of ");
            return match self.occurrence {
                Some(_) => Ok(()),
                None => Err(format!("{line:?} is not `occurrence N of M`")),
            };
        }
        self.begin_mutant(line)
    }

    fn begin_mutant(&mut self, line: &str) -> Result<(), String> {
        let invalid = || format!("{line:?} is not `TRANSITION DATABASE: GUARD`");
        let (head, guard) = line.split_once(": ").ok_or_else(invalid)?;
        let (transition, database) = head.split_once(' ').ok_or_else(invalid)?;
        let database = Database::from_str(database, false)
            .map_err(|_| format!("{database:?} is not sqlite, postgres or mysql"))?;
        self.file.clone_from(&self.section);
        self.mutants.push(Mutant {
            transition: transition.to_owned(),
            guard: guard.to_owned(),
            database,
            edits: Vec::new(),
        });
        Ok(())
    }

    fn add_find_line(&mut self, find: &str, continues: bool) -> Result<(), String> {
        let mutant = self.mutants.last_mut().ok_or("a text to find without a mutant")?;
        if let (true, Some(edit)) = (continues, mutant.edits.last_mut()) {
            edit.find.push('\n');
            edit.find.push_str(find);
            return Ok(());
        }
        let (occurrence, occurrences) = self.occurrence.take().unwrap_or((1, 1));
        mutant.edits.push(Edit {
            file: self.file.clone(),
            find: find.to_owned(),
            replacement: String::new(),
            occurrence,
            occurrences,
        });
        Ok(())
    }
}

/// Parses two numbers, of which the first is from 1 to the second.
pub(crate) fn parse_pair(text: &str, separator: &str) -> Option<(usize, usize)> {
    let (first, second) = text.split_once(separator)?;
    let (first, second) = (first.parse().ok()?, second.parse().ok()?);
    (1 <= first && first <= second).then_some((first, second))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The fence, which is part of the guard of several transitions.
    const FENCE: &str = "F";

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn every_mutant_changes_the_sources() {
        let mutants = read(root()).unwrap_or_else(|error| panic!("{error}"));
        let errors: Vec<String> =
            mutants.iter().filter_map(|mutant| mutant.changed_files(root()).err()).collect();
        assert!(errors.is_empty(), "xtask/mutants is out of date:\n{}", errors.join("\n"));
    }

    #[test]
    fn every_transition_has_mutants() {
        let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap_or_default();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| T"));
        let table: BTreeSet<String> =
            rows.filter_map(|row| Some(format!("T{}", row.split_once(" |")?.0))).collect();
        let mutants = read(root()).unwrap_or_else(|error| panic!("{error}"));
        let mut listed: BTreeSet<String> =
            mutants.into_iter().map(|mutant| mutant.transition).collect();
        assert!(listed.remove(FENCE), "the fence has no mutant");
        assert_eq!(listed, table);
    }

    #[test]
    fn mutants_have_different_names() {
        let mutants = read(root()).unwrap_or_else(|error| panic!("{error}"));
        let mut names = BTreeSet::new();
        for mutant in &mutants {
            let name = format!("{mutant} in {}", mutant.edits[0].file);
            assert!(names.insert(name.clone()), "two mutants are called {name}");
        }
    }

    #[test]
    fn a_list_has_sections_edits_and_occurrences() {
        let text = "[a.sql]\n# a comment\nT1 mysql: state\n- and x\n-   and y\nin b.rs\noccurrence 2 of 3\n- z\n+ true\n\nT2 sqlite: token\n- t\n";
        let mutants = parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(mutants[0].to_string(), "T1 mysql: state");
        let [first, second] = &mutants[0].edits[..] else { panic!("{mutants:?}") };
        assert_eq!((first.file.as_str(), first.find.as_str()), ("a.sql", "and x\n  and y"));
        assert_eq!(second.apply("z z z").as_deref(), Ok("z true z"));
        assert!(second.apply("z z").is_err());
        assert_eq!(mutants[1].edits[0].file, "a.sql");
    }

    #[test]
    fn mutants_are_in_the_order_of_the_transition_table() {
        let mut transitions = ["T10", "T7w", "T7", "F", "T0"];
        transitions.sort_by_key(|transition| table_position(transition));
        assert_eq!(transitions, ["F", "T0", "T7", "T7w", "T10"]);
    }

    #[test]
    fn an_invalid_list_is_an_error() {
        for text in [
            "- x",
            "+ x",
            "T1 oracle: state",
            "T1 state",
            "T1 sqlite: state",
            "[a]\nin b\noccurrence 2",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
