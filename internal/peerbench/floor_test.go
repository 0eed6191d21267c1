package main

import (
	"database/sql"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/matryer/is"
)

// The floor has to be a floor of the store: the same library, the same statements, the same pragmas.

func TestFloorIsTheDriversSQLite(t *testing.T) {
	is := is.New(t)
	version, source, compiled := floorLibrary()
	db, err := sql.Open("sqlite3", ":memory:")
	is.NoErr(err)
	defer func() { is.NoErr(db.Close()) }()
	var v, s string
	is.NoErr(db.QueryRow(`SELECT sqlite_version(), sqlite_source_id()`).Scan(&v, &s))
	is.Equal(version, v)
	is.Equal(source, s)
	var options []string
	is.NoErr(each(db, `PRAGMA compile_options`, func(scan func(...any) error) error {
		var o string
		err := scan(&o)
		options = append(options, o)
		return err
	}))
	is.Equal(compiled, options)
}

func TestStatementsAreTheStores(t *testing.T) {
	is := is.New(t)
	s := parseStore(t)
	is.Equal(selectTargetState, s.constant("selectTargetState"))
	is.Equal(updateTarget, s.constant("updateTarget"))
	is.Equal(updateJobLease, s.constant("updateJobLease"))
	is.Equal(updateJobCounters, s.constant("updateJobCounters"))
	is.Equal(insertTarget, `INSERT INTO batch_target (`+s.constant("targetColumns")+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`)
}

// TestPragmasAreTheStores looks for each {name, set, want} of DB.pragmas. What is no literal there depends on an option;
// auto_vacuum is left to the file, which the store makes.
func TestPragmasAreTheStores(t *testing.T) {
	is := is.New(t)
	ours := map[string]string{}
	for _, p := range pragmas(full) {
		ours[p.name] = p.value
	}
	found := 0
	s := parseStore(t)
	ast.Inspect(s.functions["pragmas"], func(n ast.Node) bool {
		p, ok := n.(*ast.CompositeLit)
		if !ok || len(p.Elts) != 3 {
			return true
		}
		name := s.value(p.Elts[0])
		if name == "auto_vacuum" {
			return true
		}
		found++
		_, ok = ours[name]
		is.True(ok) // the floor has the pragma
		switch p.Elts[1].(type) {
		case *ast.BasicLit, *ast.Ident:
			if set := s.value(p.Elts[1]); set != "" {
				is.Equal(ours[name], set)
			}
		}
		return true
	})
	is.Equal(found, len(ours))
}

// source is what the tests look up in the store's source, whose names are not exported.
type source struct {
	constants map[string]ast.Expr
	functions map[string]*ast.FuncDecl
}

func parseStore(t *testing.T) source {
	t.Helper()
	is := is.New(t)
	s := source{constants: map[string]ast.Expr{}, functions: map[string]*ast.FuncDecl{}}
	packages, err := parser.ParseDir(token.NewFileSet(), "../dcache", nil, 0) //nolint:staticcheck // One folder without build tags.
	is.NoErr(err)
	for _, file := range packages["dcache"].Files {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				s.functions[d.Name.Name] = d
			case *ast.GenDecl:
				s.add(d)
			}
		}
	}
	return s
}

func (s source) add(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.CONST {
			for i, name := range v.Names {
				if i < len(v.Values) {
					s.constants[name.Name] = v.Values[i]
				}
			}
		}
	}
}

func (s source) constant(name string) string { return s.value(s.constants[name]) }

// value of a constant string, or "" for anything else.
func (s source) value(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}
		return text
	case *ast.BinaryExpr:
		return s.value(e.X) + s.value(e.Y)
	case *ast.Ident:
		return s.value(s.constants[e.Name])
	}
	return ""
}
