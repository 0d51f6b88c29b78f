package plugins

// A Solution says how to fix a problem. At least one field is set.
type Solution struct {
	Fix  string `json:"fix,omitempty"`  // a command for sh, which the operator can copy
	Edit string `json:"edit,omitempty"` // FILE: what to change in this file
	// Advice is a sentence. It says what to do if there is no command and no edit, or if they may not suffice.
	Advice string `json:"advice,omitempty"`
}

// Lines returns the lines that plumb prints below the problem.
func (s Solution) Lines() (all []string) {
	for _, line := range [][2]string{{"", s.Fix}, {"edit: ", s.Edit}, {"", s.Advice}} {
		if line[1] != "" {
			all = append(all, line[0]+line[1])
		}
	}
	return all
}
