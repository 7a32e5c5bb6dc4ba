//! A macro for enums whose variants are stored, shown and typed as text.

/// Defines an enum whose variants have one spelling, the same in SQL, JSON, logs, pages and CLI.
///
/// The enum gets `ALL`, `as_str`, `Display`, and a `FromStr` whose error lists the valid values.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident, $field:literal {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant),+
        }

        impl $name {
            /// All variants, in the order in which they are listed to users.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The text that is stored, shown and typed.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::InvalidInput;

            fn from_str(typed: &str) -> Result<Self, Self::Err> {
                match typed {
                    $($text => Ok(Self::$variant),)+
                    _ => Err($crate::InvalidInput::with_value(
                        $field,
                        typed,
                        $crate::string_enum::list_valid_values(Self::ALL.iter().map(|variant| variant.as_str())),
                    )),
                }
            }
        }
    };
}
pub(crate) use string_enum;

/// Lists the valid values for an error message: `one of a, b, c`.
pub(crate) fn list_valid_values<'a>(values: impl Iterator<Item = &'a str>) -> String {
    format!("one of {}", values.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use crate::Language;

    #[test]
    fn text_parses_back_and_an_unknown_value_lists_the_valid_ones() {
        for &language in Language::ALL {
            assert_eq!(language.as_str().parse(), Ok(language));
        }
        let error = "fr".parse::<Language>().unwrap_err();
        assert_eq!(error.to_string(), "language: found \"fr\", expected one of en, ja");
    }
}
