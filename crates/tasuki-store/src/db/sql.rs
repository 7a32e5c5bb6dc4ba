//! The statements: files taken in at compile time, made ready for each database at first use.
//!
//! A file is written once for all three databases, with named parameters and `:now` for the
//! database's own clock. Where one truly differs, a sibling file with its name stands in for it.

use std::sync::OnceLock;

/// Which database is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite, in the process.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
}

impl Dialect {
    /// Microseconds since 1970 by the database's clock. A scalar subquery: it is read once and can
    /// bound an index, where a bare volatile function cannot.
    fn now(self) -> &'static str {
        match self {
            Self::Sqlite => "(select cast(unixepoch('subsec') * 1000000 as integer))",
            Self::Postgres => "(select (extract(epoch from clock_timestamp()) * 1000000)::bigint)",
            Self::MySql => "(select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)))",
        }
    }
}

/// One statement, for every database.
pub(crate) struct Sql {
    name: &'static str,
    texts: [&'static str; 3],
    left_out: Option<&'static str>,
    ready: [OnceLock<Ready>; 6],
}

/// A statement in the words of one driver, with the order in which it wants its parameters.
pub(crate) struct Ready {
    pub(crate) statement: &'static str,
    pub(crate) text: String,
    pub(crate) names: Vec<String>,
}

impl Ready {
    /// Tells it from others: statements stay where they are.
    pub(crate) fn mark(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Sql {
    pub(crate) const fn new(name: &'static str, texts: [&'static str; 3]) -> Self {
        Self { name, texts, left_out: None, ready: [const { OnceLock::new() }; 6] }
    }

    /// The same statement without one of its clauses.
    pub(crate) const fn without(mut self, clause: &'static str) -> Self {
        self.left_out = Some(clause);
        self
    }

    fn text(&self, dialect: Dialect) -> String {
        let text = self.texts[dialect as usize];
        self.left_out.map_or(text.to_owned(), |clause| text.replace(clause, ""))
    }

    /// An `insert ... values (...)` with its values repeated: the parameters of one row after another.
    pub(crate) fn repeated(&self, dialect: Dialect, now_is_bound: bool, rows: usize) -> Ready {
        let text = self.text(dialect);
        let (head, row) = text.split_once("\nvalues ").expect("an insert of one row");
        let rows = vec![row.trim_end(); rows].join(",\n");
        rewrite(self.name, &format!("{head}\nvalues {rows}"), dialect, now_is_bound, false)
    }

    /// The statement for a database. In tests `:now` is a parameter like any other.
    pub(crate) fn ready(&self, dialect: Dialect, now_is_bound: bool) -> &Ready {
        let index = dialect as usize * 2 + usize::from(now_is_bound);
        self.ready[index]
            .get_or_init(|| translate(self.name, &self.text(dialect), dialect, now_is_bound))
    }
}

/// Takes in `sql/<name>.sql` for all, or one file for each database.
macro_rules! sql {
    ($name:literal) => {
        Sql::new(
            $name,
            [include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, ".sql")); 3],
        )
    };
    ($name:literal, $sqlite:literal, $postgres:literal, $mysql:literal) => {
        Sql::new(
            $name,
            [
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, $sqlite, ".sql")),
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/sql/",
                    $name,
                    $postgres,
                    ".sql"
                )),
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, $mysql, ".sql")),
            ],
        )
    };
}
pub(crate) use sql;

/// Takes in several files to be sent to SQLite together: each exchange with its thread waits for its turn among all that a
/// program does. They share their parameters; the rows are those of all of them, and so is the number that matched.
macro_rules! sqlite_script {
    ($first:literal $(, $next:literal)+ $(,)?) => {
        Sql::new(
            concat!($first $(, ", ", $next)+),
            [concat!(
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $first, ".sql")),
                $(";\n", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $next, ".sql"))),+
            ); 3],
        )
    };
}
pub(crate) use sqlite_script;

pub(crate) fn translate(
    statement: &'static str,
    text: &str,
    dialect: Dialect,
    now_is_bound: bool,
) -> Ready {
    let numbered = dialect != Dialect::MySql;
    rewrite(statement, text, dialect, now_is_bound, numbered)
}

/// Without numbers a parameter is bound wherever it stands, also one that was there before.
fn rewrite(
    statement: &'static str,
    text: &str,
    dialect: Dialect,
    now_is_bound: bool,
    numbered: bool,
) -> Ready {
    let mut ready = Ready { statement, text: String::with_capacity(text.len()), names: Vec::new() };
    let mut rest = &*without_comments(text);
    while let Some(at) = rest.find([':', '\'']) {
        let (before, from) = rest.split_at(at);
        ready.text.push_str(before);
        if let Some(quoted) = from.strip_prefix('\'') {
            let end = quoted.find('\'').map_or(from.len(), |end| end + 2);
            ready.text.push_str(&from[..end]);
            rest = &from[end..];
        } else if let Some(cast) = from.strip_prefix("::") {
            ready.text.push_str("::");
            rest = cast;
        } else {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = from[1..].find(|c| !word(c)).map_or(from.len(), |end| end + 1);
            let name = &from[1..end];
            match name == "now" && !now_is_bound {
                true => ready.text.push_str(dialect.now()),
                false => ready.push_parameter(name, numbered),
            }
            rest = &from[end..];
        }
    }
    ready.text.push_str(rest);
    if dialect == Dialect::Sqlite {
        // One writer at a time: there is nothing to lock. And a run is two tables, one of which has all that a transition
        // changes.
        ready.text = ready
            .text
            .replace(" for update skip locked", "")
            .replace(" for update", "")
            .replace("update tasuki_run\n", "update tasuki_run_life as tasuki_run\n");
    }
    ready
}

impl Ready {
    fn push_parameter(&mut self, name: &str, numbered: bool) {
        // Only those that have numbers can be meant twice; of the others there may be thousands.
        let known = numbered.then(|| self.names.iter().position(|one| one == name)).flatten();
        let number = known.map_or_else(
            || {
                self.names.push(name.to_owned());
                self.names.len()
            },
            |index| index + 1,
        );
        match numbered {
            false => self.text.push('?'),
            // Not `?9` on SQLite: a statement that names it alone has nine, and the driver loses count of them.
            true => self.text.push_str(&format!("${number}")),
        }
    }
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    lines
        .map(|line| line.split_once(" -- ").map_or(line, |(code, _)| code))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, dialect: Dialect) -> (String, Vec<String>) {
        let ready = translate("test", text, dialect, true);
        (ready.text, ready.names)
    }

    #[test]
    fn names_become_what_each_driver_wants() {
        let text = "-- a comment with :nothing\nselect :a, ':b', :a::bigint + :now -- :c\nfrom x";
        let words = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            told(text, Dialect::Postgres),
            ("select $1, ':b', $1::bigint + $2\nfrom x".to_owned(), words(&["a", "now"]))
        );
        assert_eq!(
            told(text, Dialect::MySql),
            ("select ?, ':b', ?::bigint + ?\nfrom x".to_owned(), words(&["a", "a", "now"]))
        );
        assert_eq!(told(text, Dialect::Sqlite).1, words(&["a", "now"]));
    }

    #[test]
    fn the_clock_is_the_databases_unless_a_test_binds_it() {
        let ready = translate("test", "select :now", Dialect::Postgres, false);
        assert!(ready.text.contains("clock_timestamp()") && ready.names.is_empty());
    }

    #[test]
    fn sqlite_has_nothing_to_lock() {
        let text = "select id from t for update skip locked";
        assert_eq!(told(text, Dialect::Sqlite).0, "select id from t");
    }
}
