//! Builds and tests mutants, and remembers the results.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::hash::Hasher as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::list::{Database, Mutant};
use super::tree;

/// Exit code of nextest if all tests passed.
const NEXTEST_PASSED: i32 = 0;
/// Exit code of nextest if a test failed.
const NEXTEST_FAILED: i32 = 100;
/// Messages of the databases for a statement that they cannot parse. A mutant with such a statement proves nothing.
const SYNTAX_ERRORS: [&str; 3] =
    [": syntax error", "syntax error at or near", "You have an error in your SQL syntax"];

/// What the tests said about a mutant.
pub(super) enum Verdict {
    /// A test failed, as it should.
    Caught {
        /// The first test that failed.
        test: String,
    },
    /// All tests passed: no test needs the guard.
    Survived,
    /// The mutant does not compile, or the tests cannot run.
    Broken {
        /// The first error.
        error: String,
    },
}

impl Verdict {
    /// The result in one word, and the failed test or the error.
    pub(super) fn columns(&self) -> (&'static str, &str) {
        match self {
            Self::Caught { test } => ("caught", test),
            Self::Survived => ("survived", ""),
            Self::Broken { error } => ("broken", error),
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Caught { test } => write!(f, "caught by {test}"),
            Self::Survived => write!(f, "SURVIVED"),
            Self::Broken { error } => write!(f, "BROKEN: {error}"),
        }
    }
}

/// Runs the contract tests in a copy of the working tree.
pub(super) struct Runner {
    tree: PathBuf,
    target: PathBuf,
    /// File with the changed SQL texts of the current mutant, which the tests read.
    mutation_file: PathBuf,
}

impl Runner {
    pub(super) fn new(root: &Path, folder: &Path) -> Result<Self, String> {
        let (tree, target) = (folder.join("tree"), folder.join("target"));
        std::fs::create_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        tree::copy(root, &tree)?;
        let mutation_file = folder.join("mutation.json");
        write_file(&mutation_file, "[]")?;
        Ok(Self { tree, target, mutation_file })
    }

    /// The copy of the working tree.
    pub(super) fn tree(&self) -> &Path {
        &self.tree
    }

    /// Checks that the contract tests pass without a mutation.
    pub(super) fn check_unchanged(&self, database: Database) -> Result<(), String> {
        let name = database.name();
        match self.run_tests(&all_tests(database))? {
            Verdict::Survived => Ok(()),
            Verdict::Caught { test } => {
                Err(format!("the contract test {test} fails on {name} without a mutation"))
            }
            Verdict::Broken { error } => {
                Err(format!("the contract tests on {name} cannot run: {error}"))
            }
        }
    }

    /// Tests a mutant, given the new contents of its files. A mutant of Rust code is built, and the files are restored
    /// afterwards. SQL texts are replaced at run time instead, because a build takes longer than most tests.
    /// `likely_tests` run first, because they have caught similar mutants; all other tests only run if these pass.
    pub(super) fn test(
        &self,
        mutant: &Mutant,
        files: &[(String, String)],
        likely_tests: &[String],
    ) -> Result<(Verdict, Duration), String> {
        let start = Instant::now();
        let mut originals = Vec::with_capacity(files.len());
        for (path, _) in files {
            let path = self.tree.join(path);
            let original = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            originals.push((path, original));
        }
        let mutated = files.iter().map(|(_, mutated)| mutated);
        if files.iter().all(|(path, _)| path.ends_with(".sql")) {
            let originals = originals.iter().map(|(_, original)| original);
            let pairs: Vec<(&String, &String)> = originals.zip(mutated).collect();
            write_file(&self.mutation_file, &json!(pairs).to_string())?;
            let verdict = self.run_likely_tests_first(mutant.database, likely_tests);
            write_file(&self.mutation_file, "[]")?;
            return Ok((verdict?, start.elapsed()));
        }
        for ((path, _), mutated) in originals.iter().zip(mutated) {
            write_file(path, mutated)?;
        }
        let verdict = self.run_likely_tests_first(mutant.database, likely_tests);
        for (path, original) in originals {
            write_file(&path, &original)?;
        }
        Ok((verdict?, start.elapsed()))
    }

    fn run_likely_tests_first(
        &self,
        database: Database,
        likely_tests: &[String],
    ) -> Result<Verdict, String> {
        if !likely_tests.is_empty() {
            let filter: Vec<String> =
                likely_tests.iter().map(|test| format!("test(={test})")).collect();
            if let caught @ Verdict::Caught { .. } = self.run_tests(&filter.join(" + "))? {
                return Ok(caught);
            }
        }
        self.run_tests(&all_tests(database))
    }

    /// Runs the contract tests that match a filter expression of nextest.
    fn run_tests(&self, filter: &str) -> Result<Verdict, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["nextest", "run", "-p", "tasuki-store", "--test", "contract"])
            .args(["--features", "mutants"])
            .args(["--fail-fast", "--color", "never", "-E", filter])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1")
            .env("TASUKI_MUTATION_FILE", &self.mutation_file)
            // A removed guard may leave an unused value behind.
            .env("RUSTFLAGS", "--cap-lints=warn")
            .output()
            .map_err(|error| format!("cargo nextest: {error}"))?;
        let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stdout));
        Ok(verdict(output.status.code(), &text))
    }
}

/// The filter of all contract tests of a database. Most of them end with `::postgres`; tests with several tasks or
/// processes end with `_postgres`.
fn all_tests(database: Database) -> String {
    format!("test(/(::|_){}$/)", database.name())
}

/// Writes a file. If it is a source file, its new modification time makes cargo build it again.
fn write_file(path: &Path, contents: &str) -> Result<(), String> {
    std::fs::write(path, contents).map_err(|error| format!("{}: {error}", path.display()))
}

fn verdict(exit_code: Option<i32>, output: &str) -> Verdict {
    let syntax_error =
        output.lines().find(|line| SYNTAX_ERRORS.iter().any(|error| line.contains(error)));
    match (exit_code, syntax_error) {
        (Some(NEXTEST_PASSED), _) => Verdict::Survived,
        (Some(NEXTEST_FAILED), None) => Verdict::Caught { test: first_failed_test(output) },
        (Some(NEXTEST_FAILED), Some(line)) => Verdict::Broken { error: line.trim().to_owned() },
        _ => Verdict::Broken { error: first_error(output) },
    }
}

/// Finds the first test that failed. Its line is, for example,
/// `FAIL [   0.123s] ( 3/80) tasuki-store::contract races::one_of_two_starts_wins::sqlite`.
fn first_failed_test(output: &str) -> String {
    let failed = |line: &&str| {
        let word = line.split_whitespace().next().unwrap_or_default();
        let has_failed = ["FAIL", "TIMEOUT", "ABORT", "LEAK-FAIL"].contains(&word);
        (has_failed || word.starts_with("SIG")) && line.contains("tasuki-store::contract")
    };
    let line = output.lines().find(failed).unwrap_or("a test");
    line.split_whitespace().next_back().unwrap_or(line).to_owned()
}

fn first_error(output: &str) -> String {
    let error = output.lines().find(|line| line.trim_start().starts_with("error"));
    error.or_else(|| output.lines().last()).unwrap_or("no output").trim().to_owned()
}

/// The results of earlier runs, one JSON object per line.
pub(super) struct Journal {
    path: PathBuf,
    /// Hash of the crates whose code decides whether a test catches a mutant.
    sources_hash: u64,
    entries: Vec<Value>,
}

impl Journal {
    /// Opens the journal file. `tree` is the copy of the working tree.
    pub(super) fn open(path: &Path, tree: &Path) -> Result<Self, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        // An interrupted run may have left half a line.
        let entries = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let sources_hash = tree::hash_crates(tree, &["tasuki-core", "tasuki-store"])?;
        Ok(Self { path: path.to_owned(), sources_hash, entries })
    }

    /// Finds the test that caught the mutant in an earlier run, if the sources were the same then.
    pub(super) fn find_caught(
        &self,
        mutant: &Mutant,
        files: &[(String, String)],
    ) -> Option<String> {
        let hash = self.hash(mutant.database, files);
        let last = self.entries.iter().rev().find(|entry| entry["hash"] == hash.as_str())?;
        let is_caught = last["result"] == "caught";
        is_caught.then(|| last["detail"].as_str().unwrap_or_default().to_owned())
    }

    /// The tests that caught mutants of the same transition in earlier runs, on any database, with their names on this
    /// mutant's database.
    pub(super) fn list_likely_tests(&self, mutant: &Mutant) -> Vec<String> {
        let transition = format!("{} ", mutant.transition);
        let similar = self.entries.iter().filter(|entry| {
            entry["result"] == "caught"
                && entry["mutant"].as_str().is_some_and(|name| name.starts_with(&transition))
        });
        let tests: BTreeSet<String> = similar
            .filter_map(|entry| {
                let test = entry["detail"].as_str()?;
                let suffix = [Database::Sqlite, Database::Postgres, Database::Mysql]
                    .map(Database::name)
                    .into_iter()
                    .find(|suffix| test.ends_with(suffix))?;
                Some(format!("{}{}", test.strip_suffix(suffix)?, mutant.database.name()))
            })
            .collect();
        tests.into_iter().collect()
    }

    pub(super) fn append(
        &mut self,
        mutant: &Mutant,
        files: &[(String, String)],
        verdict: &Verdict,
        duration: Duration,
    ) -> Result<(), String> {
        let (result, detail) = verdict.columns();
        let entry = json!({
            "hash": self.hash(mutant.database, files),
            "mutant": mutant.to_string(),
            "result": result,
            "detail": detail,
            "seconds": duration.as_secs(),
        });
        let describe = |error: std::io::Error| format!("{}: {error}", self.path.display());
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(describe)?;
        }
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .map_err(describe)?;
        writeln!(file, "{entry}").map_err(describe)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Hash of the sources, the database and the mutated files. A new version of Rust may change it; the mutants then run
    /// once more.
    fn hash(&self, database: Database, files: &[(String, String)]) -> String {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u64(self.sources_hash);
        hasher.write(database.name().as_bytes());
        for text in files.iter().flat_map(|(path, contents)| [path, contents]) {
            hasher.write_usize(text.len());
            hasher.write(text.as_bytes());
        }
        format!("{:016x}", hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_and_the_output_of_nextest_give_the_verdict() {
        let output = "    PASS [   0.1s] (1/9) tasuki-store::contract races::a::sqlite\n        \
            FAIL [   0.123s] (2/9) tasuki-store::contract races::b::sqlite\n";
        assert_eq!(verdict(Some(100), output).columns(), ("caught", "races::b::sqlite"));
        assert_eq!(verdict(Some(0), "").columns(), ("survived", ""));
        let build = "warning: x\nerror[E0425]: cannot find value\n";
        assert_eq!(
            verdict(Some(101), build).columns(),
            ("broken", "error[E0425]: cannot find value")
        );
        let syntax = format!("{output}Database(near \"and\": syntax error)\n");
        assert_eq!(verdict(Some(100), &syntax).columns().0, "broken");
        assert_eq!(verdict(None, "killed").columns(), ("broken", "killed"));
    }
}
