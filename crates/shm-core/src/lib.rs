//! One shared arena for the processes of a program.
