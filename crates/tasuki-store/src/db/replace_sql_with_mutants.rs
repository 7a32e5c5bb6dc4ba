//! Changes SQL texts at run time: a test with a mutant of a statement needs no build of its own. Only the feature
//! `mutants` compiles this module; `cargo xtask mutants` uses it.

use std::borrow::Cow;
use std::sync::OnceLock;

/// Name of the environment variable with the path of a JSON file: a list of pairs, each the text of an SQL file and
/// the text that replaces it.
const MUTATION_FILE: &str = "TASUKI_MUTATION_FILE";

/// Returns a compiled-in SQL text with the replacements of the mutation file applied.
pub(crate) fn mutate(text: &'static str) -> Cow<'static, str> {
    static REPLACEMENTS: OnceLock<Vec<(String, String)>> = OnceLock::new();
    let replacements = REPLACEMENTS.get_or_init(read_replacements);
    replacements.iter().fold(Cow::Borrowed(text), |text, (original, mutated)| {
        match text.contains(original) {
            true => Cow::Owned(text.replace(original, mutated)),
            false => text,
        }
    })
}

fn read_replacements() -> Vec<(String, String)> {
    let Some(path) = std::env::var_os(MUTATION_FILE) else { return Vec::new() };
    let json = std::fs::read_to_string(&path).expect("the mutation file is readable");
    serde_json::from_str(&json).expect("the mutation file is a JSON list of pairs")
}
