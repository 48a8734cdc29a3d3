package schema

import (
	"errors"
	"slices"
)

// maxCost is how many schemas may check one value, alternatives and references counted
// as often as they are tried.
const maxCost = 10_000

var (
	errEndless = errors.New("a reference in it leads back to itself")
	errCostly  = errors.New("it has too many alternatives")
)

// bounded refuses schemas that one value would be checked against without end, or as
// good as: a reference that leads back to itself on the same value, and keywords for
// alternatives that multiply.
func (c *compiler) bounded() error {
	costs := make(map[*node]int, len(c.nodes))
	const underWay = -1
	var cost func(n *node) (int, error)
	cost = func(n *node) (int, error) {
		switch known := costs[n]; {
		case known == underWay:
			return 0, errEndless
		case known > 0:
			return known, nil
		}
		costs[n] = underWay
		sum := 1
		for _, s := range n.inPlace() {
			more, err := cost(s)
			if err != nil {
				return 0, err
			}
			if sum += more; sum > maxCost {
				return 0, errCostly
			}
		}
		costs[n] = sum
		return sum, nil
	}
	for _, v := range c.order {
		if _, err := cost(c.nodes[v]); err != nil {
			return err
		}
	}
	return nil
}

// inPlace is the nodes that check the very value that n checks.
func (n *node) inPlace() []*node {
	all := slices.Concat([]*node{n.ref, n.not, n.when, n.then, n.otherwise}, n.allOf, n.anyOf, n.oneOf)
	for _, d := range n.dependencies {
		all = append(all, d.node)
	}
	return slices.DeleteFunc(all, func(s *node) bool { return s == nil })
}
