//! How a node is told how to start: a flag, or a variable of the environment, or a line in a file, or a default; the
//! first that is there. One table has it all, so that each value has one name everywhere.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use toml_edit::{DocumentMut, Item, Value};

use crate::database;
use crate::output::Failure;

/// Where a file is looked for that nobody named.
const USUAL: &str = "/etc/tasuki/tasuki.toml";

/// One thing to be told.
pub(crate) struct Key {
    /// As in the file: `rpc_listen`. The flag is `--rpc-listen`, the variable `TASUKI_RPC_LISTEN`.
    pub(crate) name: &'static str,
    value_name: &'static str,
    default: Option<&'static str>,
    /// Whether there may be several.
    list: bool,
    help: &'static str,
}

const fn key(
    name: &'static str,
    value_name: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Key {
    Key { name, value_name, default, list: false, help }
}

const fn list(name: &'static str, value_name: &'static str, help: &'static str) -> Key {
    Key { name, value_name, default: None, list: true, help }
}

/// All of them, in the order in which they are shown.
pub(crate) const KEYS: &[Key] = &[
    key(
        "database_url",
        "URL",
        None,
        "The database that all nodes share: postgres://… or mysql://…",
    ),
    key("data", "DIR", Some("tasuki-data"), "Where this node keeps its own things"),
    key("node", "NAME", None, "What this host is called; its host name if nothing is said"),
    key(
        "listen",
        "ADDRESS",
        Some("127.0.0.1:7711"),
        "Where the API is served; port 0 takes a free one",
    ),
    key(
        "cluster",
        "NAME",
        Some("tasuki"),
        "What the cluster is called: certificates and tokens are for one cluster",
    ),
    key(
        "rpc_listen",
        "ADDRESS",
        Some("127.0.0.1:7712"),
        "Where other nodes call this one; port 0 takes a free one",
    ),
    key("rpc_address", "HOST:PORT", None, "Where they find it, if that is not rpc_listen"),
    key(
        "tls_dir",
        "DIR",
        Some("/etc/tasuki/tls"),
        "Where this node's tls.crt, tls.key and ca.crt are",
    ),
    key("tls_cert", "FILE", None, "The certificate of this node, if it is elsewhere"),
    key("tls_key", "FILE", None, "Its key, if it is elsewhere"),
    key(
        "tls_ca",
        "FILE",
        None,
        "The authority that signed the certificates of all nodes, if it is elsewhere",
    ),
    key(
        "rpc_token_key",
        "FILE",
        None,
        "Sign calls with this key instead, where a mesh ends TLS before the node",
    ),
    key(
        "rpc_token_key_previous",
        "FILE",
        None,
        "A second key that is accepted, so that keys can be exchanged",
    ),
    key(
        "redis_url",
        "URL",
        None,
        "Redis, for quicker coordination: redis://…, rediss://…, redis+sentinel://… or redis+cluster://…",
    ),
    key("redis_prefix", "TEXT", Some("tasuki"), "What the names of all keys in Redis begin with"),
    list("label", "LABEL", "What this worker is good for"),
    key("slots", "NUMBER", None, "How many commands at once, instead of what the settings say"),
    list("allow_program", "PROGRAM", "The only programs this worker runs"),
    list("pass_env", "NAME", "One more variable of the environment that jobs see"),
    key("django_project", "DIR", None, "Run jobs of kind django in this project directory"),
    key("django_python", "PROGRAM", Some("python3"), "The interpreter for it"),
    key(
        "django_settings",
        "MODULE",
        None,
        "Its DJANGO_SETTINGS_MODULE, if manage.py is not to choose",
    ),
    key(
        "drain",
        "DURATION",
        Some("30s"),
        "How long running work may go on after this node was told to stop",
    ),
];

/// Who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Flag(String),
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What was said, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) values: Vec<String>,
    pub(crate) source: Source,
}

impl Key {
    fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    fn variable(&self) -> String {
        format!("TASUKI_{}", self.name.to_uppercase())
    }

    /// As it may be shown: a URL may hold a password.
    pub(crate) fn shown(&self, value: &str) -> String {
        match self.name.ends_with("_url") {
            true => database::shown(value),
            false => value.to_owned(),
        }
    }
}

/// What was typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Typed {
    flags: BTreeMap<&'static str, Vec<String>>,
    config: Option<PathBuf>,
}

impl FromArgMatches for Typed {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = BTreeMap::new();
        for key in KEYS {
            if let Some(values) = matches.get_many::<String>(key.name) {
                flags.insert(key.name, values.cloned().collect());
            }
        }
        Ok(Self { flags, config: matches.get_one::<PathBuf>("config").cloned() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Typed {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "A file with any of these [env: TASUKI_CONFIG] [default: {USUAL}, if it is there]"
            ));
        KEYS.iter().fold(command.arg(config), |command, key| {
            let mut help = format!("{} [env: {}]", key.help, key.variable());
            if let Some(default) = key.default {
                help.push_str(&format!(" [default: {default}]"));
            }
            let arg = Arg::new(key.name).long(key.flag()).value_name(key.value_name);
            let several = "; may be given more than once, and with commas in the environment";
            command.arg(match key.list {
                true => arg.action(ArgAction::Append).help(help.replacen(
                    " [env",
                    &format!("{several} [env"),
                    1,
                )),
                false => arg.help(help),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// All that is known of how a node starts.
pub(crate) struct Layers {
    said: BTreeMap<&'static str, Said>,
}

impl Layers {
    /// Puts it together. `variable` reads the environment.
    pub(crate) fn read(
        typed: &Typed,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let named = typed.config.clone().or_else(|| variable("TASUKI_CONFIG").map(PathBuf::from));
        let usual = PathBuf::from(USUAL);
        let file = named.clone().unwrap_or_else(|| usual.clone());
        let mut in_file = match named.is_some() || usual.exists() {
            true => read_file(&file)?,
            false => BTreeMap::new(),
        };
        let mut said = BTreeMap::new();
        for key in KEYS {
            let flag = typed.flags.get(key.name).cloned();
            let flag = flag.map(|values| (values, Source::Flag(key.flag())));
            let environment = match variable(&key.variable()) {
                // As good as none: `TASUKI_X=${X:-}` says nothing.
                Some(value) if value.is_empty() => None,
                Some(value) => {
                    Some((of_environment(key, value)?, Source::Environment(key.variable())))
                }
                None => None,
            };
            let in_file =
                in_file.remove(key.name).map(|values| (values, Source::File(file.clone())));
            let default = key.default.map(|value| (vec![value.to_owned()], Source::Default));
            if let Some((values, source)) = flag.or(environment).or(in_file).or(default) {
                said.insert(key.name, Said { values, source });
            }
        }
        Ok(Self { said })
    }

    pub(crate) fn said(&self, name: &str) -> Option<&Said> {
        self.said.get(name)
    }

    /// What was said, if anything.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.said(name)?.values.last().map(String::as_str)
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// `None`: nothing was said. A list that was said may be empty.
    pub(crate) fn list(&self, name: &str) -> Option<&[String]> {
        self.said(name).map(|said| &*said.values)
    }

    /// What was said, as something else; what it cannot be is refused, with who said it.
    pub(crate) fn parsed<T>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        let Some(said) = self.said(name) else { return Ok(None) };
        let Some(value) = said.values.last() else { return Ok(None) };
        let refused =
            |why| Failure::bad_usage(format!("{name} = {value:?} ({}): {why}", said.source));
        read(value).map(Some).map_err(refused)
    }
}

fn of_environment(key: &Key, value: OsString) -> Result<Vec<String>, Failure> {
    let Ok(value) = value.into_string() else {
        return Err(Failure::bad_usage(format!("{} is not UTF-8", key.variable())));
    };
    Ok(match key.list {
        true => value
            .split(',')
            .map(str::trim)
            .filter(|one| !one.is_empty())
            .map(str::to_owned)
            .collect(),
        false => vec![value],
    })
}

fn read_file(path: &Path) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let at = |why: String| Failure::bad_usage(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
    // Its words only: the line itself may hold a password.
    let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        let line =
            error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count());
        at(format!("it is no TOML in line {}: {}", line.max(1), error.message()))
    })?;
    let mut found = BTreeMap::new();
    for (name, item) in document.iter() {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            return Err(at(format!("there is no {name:?}"))
                .hint(format!("it may have {}", names.join(", "))));
        };
        let values = match (key.list, item) {
            (true, Item::Value(Value::Array(values))) => values.iter().map(scalar).collect(),
            (_, Item::Value(value)) => scalar(value).map(|value| vec![value]),
            (_, _) => None,
        };
        let expected = if key.list { "a text or a list of texts" } else { "a text" };
        found.insert(
            name.to_owned(),
            values.ok_or_else(|| at(format!("{name} is to be {expected}")))?,
        );
    }
    Ok(found)
}

/// A text, or what is as good as one.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Boolean(_)
        | Value::Float(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::InlineTable(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(
        flags: &[(&'static str, &str)],
        environment: &[(&str, &str)],
        file: &str,
    ) -> Result<Layers, Failure> {
        let folder = std::env::temp_dir().join(format!("tasuki-layers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tasuki.toml");
        std::fs::write(&path, file).unwrap();
        let flags = flags.iter().map(|(name, value)| (*name, vec![(*value).to_owned()])).collect();
        let typed = Typed { flags, config: Some(path) };
        let read = Layers::read(&typed, |name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        });
        std::fs::remove_dir_all(folder).unwrap();
        read
    }

    #[test]
    fn the_first_that_says_something_counts() {
        let file = "node = \"from-file\"\nslots = 3\nlabel = [\"a\", \"b\"]\n";
        let told = |flags, environment, name: &str| {
            let read = layers(flags, environment, file).unwrap();
            let said = read.said(name).cloned();
            said.map(|said| {
                (
                    said.values.join("+"),
                    matches!(said.source, Source::File(_)),
                    said.source.to_string(),
                )
            })
        };
        let node = told(&[("node", "f")], &[("TASUKI_NODE", "e")], "node");
        assert_eq!(node, Some(("f".to_owned(), false, "--node".to_owned())));
        let node = told(&[], &[("TASUKI_NODE", "e")], "node").unwrap();
        assert_eq!((node.0.as_str(), node.2.as_str()), ("e", "TASUKI_NODE"));
        let node = told(&[], &[], "node").unwrap();
        assert!(node.0 == "from-file" && node.1);
        assert_eq!(told(&[], &[], "slots").unwrap().0, "3");
        assert_eq!(told(&[], &[], "label").unwrap().0, "a+b");
        assert_eq!(told(&[], &[("TASUKI_LABEL", "x, y,")], "label").unwrap().0, "x+y");
        assert_eq!(told(&[], &[], "drain").unwrap().2, "default");
        assert_eq!(told(&[], &[], "redis_url"), None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (file, expected) in [
            ("nod = \"x\"", "there is no \"nod\""),
            ("node = [\"x\"]", "node is to be a text"),
            ("node = true", "node is to be a text"),
            ("label = [1.5]", "label is to be a text or a list of texts"),
            ("node = ", "TOML"),
            ("database_url = postgres://ann:s3cret@h/x", "TOML in line 1"),
        ] {
            let refused = layers(&[], &[], file).err().expect("refused");
            assert!(refused.message().contains(expected), "{}", refused.message());
            assert!(refused.message().contains("tasuki.toml"), "{}", refused.message());
            assert!(!refused.message().contains("s3cret"), "{}", refused.message());
        }
        let read = layers(&[], &[("TASUKI_SLOTS", "many")], "").unwrap();
        let refused =
            read.parsed("slots", |typed| typed.parse::<u32>().map_err(|error| error.to_string()));
        let refused = refused.expect_err("no number");
        assert_eq!(
            refused.message(),
            "slots = \"many\" (TASUKI_SLOTS): invalid digit found in string"
        );
    }
}
