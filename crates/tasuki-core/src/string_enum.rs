//! Enums whose members are words that users read and type.

/// Makes an enum whose variants have one spelling, the same in SQL, JSON, logs, pages and CLI.
///
/// Each gets `ALL`, `as_str`, `Display` and a `FromStr` that names the choices when it refuses.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident, $field:literal {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant),+
        }

        impl $name {
            /// All of them, in the order they are listed to people.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that is stored, shown and typed.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::Invalid;

            fn from_str(typed: &str) -> Result<Self, Self::Err> {
                match typed {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::Invalid::typed(
                        $field,
                        typed,
                        $crate::string_enum::one_of(Self::ALL.iter().map(|one| one.as_str())),
                    )),
                }
            }
        }
    };
}
pub(crate) use words;

/// `one of a, b, c`
pub(crate) fn one_of<'a>(words: impl Iterator<Item = &'a str>) -> String {
    format!("one of {}", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use crate::Language;

    #[test]
    fn a_word_reads_back_and_a_wrong_one_lists_the_choices() {
        for &one in Language::ALL {
            assert_eq!(one.as_str().parse(), Ok(one));
        }
        let refused = "fr".parse::<Language>().unwrap_err();
        assert_eq!(refused.to_string(), "language: found \"fr\", expected one of en, ja");
    }
}
